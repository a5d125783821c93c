// What the form holds, kept in this browser over a reload.

const STORE = "multitoken-settings";

export function load() {
  try {
    return JSON.parse(localStorage.getItem(STORE)) ?? {};
  } catch {
    return {};
  }
}

export function save(settings) {
  localStorage.setItem(STORE, JSON.stringify(settings));
}

/** Values of the form's own fields (those of the method's options are kept apart). */
export function fromForm(form) {
  const found = {};
  for (const field of form.elements) {
    if (!field.name || field.name.startsWith("method_options.")) continue;
    if (field.type === "radio" && !field.checked) continue;
    found[field.name] = field.type === "checkbox" ? field.checked : field.value;
  }
  return found;
}

export function toForm(form, values) {
  for (const field of form.elements) {
    if (!(field.name in values)) continue;
    if (field.type === "radio") field.checked = field.value === values[field.name];
    else if (field.type === "checkbox") field.checked = values[field.name];
    else field.value = values[field.name];
  }
}
