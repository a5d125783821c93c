// A form for a method's options, made from their JSON schema. Fields that are left alone are not sent.

export class OptionForm {
  /** @param {HTMLElement} host where the fields go  @param {() => void} changed called after each change */
  constructor(host, changed) {
    this.host = host;
    this.fields = new Map();
    this.method = null;
    host.addEventListener("input", changed);
  }

  /** Show the options of method `name`, filled with `values`. */
  show(name, schema, values = {}) {
    this.method = name;
    this.fields.clear();
    this.host.textContent = "";
    for (const [option, property] of Object.entries(schema.properties ?? {})) {
      const input = inputFor(property);
      if (option in values) input.value = asText(values[option]);
      input.name = `method_options.${option}`;
      this.fields.set(option, { input, property });
      this.host.append(labelled(option, input, property));
    }
    if (!this.fields.size) this.host.textContent = "This method has none.";
  }

  /** Options that have been set. */
  values() {
    const found = {};
    for (const [name, { input, property }] of this.fields) {
      if (input.value !== "") found[name] = parsed(input.value, property);
    }
    return found;
  }
}

function labelled(name, input, property) {
  const label = document.createElement("label");
  label.className = "field";
  const title = document.createElement("span");
  title.textContent = name.replaceAll("_", " ");
  const help = document.createElement("span");
  help.className = "help";
  help.textContent = property.description ?? "";
  label.append(title, input, help);
  return label;
}

function inputFor(property) {
  const initial = property.default ?? null;
  if (property.enum || property.type === "boolean") {
    const select = document.createElement("select");
    select.append(new Option(`default (${asText(initial)})`, ""));
    for (const choice of property.enum ?? [true, false]) select.append(new Option(asText(choice), asText(choice)));
    return select;
  }
  const input = document.createElement("input");
  const numeric = property.type === "integer" || property.type === "number";
  input.type = numeric ? "number" : "text";
  if (numeric) {
    input.step = property.type === "integer" ? "1" : "any";
    if (property.minimum !== undefined) input.min = property.minimum;
    if (property.maximum !== undefined) input.max = property.maximum;
  }
  input.placeholder = initial === null ? "not set" : asText(initial);
  return input;
}

function asText(value) {
  return Array.isArray(value) ? value.join(", ") : String(value ?? "none");
}

function parsed(text, property) {
  const kinds = [property, ...(property.anyOf ?? [])];
  if (kinds.some((kind) => kind.type === "array") && /[,\d]/.test(text)) {
    return text.split(",").map((part) => scalar(part.trim()));
  }
  return scalar(text.trim());
}

function scalar(text) {
  if (text === "true" || text === "false") return text === "true";
  return text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
}
