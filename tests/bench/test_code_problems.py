"""The bundled code problems can be solved, and their tests tell a wrong solution."""

from __future__ import annotations

import pytest

from multitoken.bench.tasks.code_problems import PROBLEMS

SOLUTIONS = {
    "is_palindrome": "def is_palindrome(t):\n s = [c for c in t.lower() if c.isalnum()]\n return s == s[::-1]",
    "count_vowels": "def count_vowels(t): return sum(c in 'aeiou' for c in t.lower())",
    "fibonacci": "def fibonacci(n):\n s = [0, 1]\n while len(s) < n: s.append(s[-1] + s[-2])\n return s[:n]",
    "gcd": "def gcd(a, b): return a if b == 0 else gcd(b, a % b)",
    "flatten": "def flatten(x): return [y for i in x for y in (flatten(i) if isinstance(i, list) else [i])]",
    "word_counts": "def word_counts(t):\n w = t.lower().split()\n return {x: w.count(x) for x in w}",
    "is_prime": "def is_prime(n): return n > 1 and all(n % d for d in range(2, n))",
    "rotate": "def rotate(x, k):\n k = k % len(x) if x else 0\n return x[len(x) - k:] + x[:len(x) - k]",
    "balanced": (
        "def balanced(t):\n s = []\n for c in t:\n  if c in '([{': s.append(c)\n"
        "  elif c in ')]}' and (not s or s.pop() + c not in ('()', '[]', '{}')): return False\n return not s"
    ),
    "merge_sorted": "def merge_sorted(a, b): return sorted(a + b)",
    "to_roman": (
        "def to_roman(n):\n r = ''\n for v, s in ((1000, 'M'), (900, 'CM'), (500, 'D'), (400, 'CD'), (100, 'C'),"
        " (90, 'XC'), (50, 'L'), (40, 'XL'), (10, 'X'), (9, 'IX'), (5, 'V'), (4, 'IV'), (1, 'I')):\n"
        "  while n >= v: r += s; n -= v\n return r"
    ),
    "second_largest": "def second_largest(x):\n s = sorted(set(x))\n return s[-2] if len(s) > 1 else None",
    "run_lengths": (
        "def run_lengths(t):\n r = []\n for c in t:\n  if r and r[-1][0] == c: r[-1] = (c, r[-1][1] + 1)\n"
        "  else: r.append((c, 1))\n return r"
    ),
    "transpose": "def transpose(m): return [list(c) for c in zip(*m)]",
    "digit_sum": "def digit_sum(n): return sum(map(int, str(abs(n))))",
    "are_anagrams": "def are_anagrams(a, b): return sorted(a.lower()) == sorted(b.lower())",
    "binary_search": "def binary_search(x, t): return x.index(t) if t in x else -1",
    "caesar": (
        "def caesar(t, k):\n def f(c):\n  b = 65 if c.isupper() else 97\n"
        "  return chr((ord(c) - b + k) % 26 + b) if c.isalpha() else c\n return ''.join(map(f, t))"
    ),
    "common_prefix": (
        "def common_prefix(w):\n p = w[0] if w else ''\n"
        " while not all(x.startswith(p) for x in w): p = p[:-1]\n return p"
    ),
    "chunks": "def chunks(x, n): return [x[i:i + n] for i in range(0, len(x), n)]",
}


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_a_right_solution_passes_and_a_wrong_one_does_not(problem):
    exec(f"{SOLUTIONS[problem.name]}\n{problem.tests}", {})
    compile(problem.stub, problem.name, "exec")
    wrong = f"def {problem.name}(*_): return None\n{problem.tests}"
    with pytest.raises((AssertionError, TypeError)):
        exec(wrong, {})
