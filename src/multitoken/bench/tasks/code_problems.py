"""Problems of task ``code``: a stub with a docstring, and assertions."""

from __future__ import annotations

from typing import NamedTuple


class Problem(NamedTuple):
    """``stub``: signature and docstring; ``tests``: statements that raise if the function is wrong."""

    name: str
    stub: str
    tests: str


def _problem(signature: str, doc: str, *tests: str) -> Problem:
    name = signature.split("(")[0]
    checks = "\n".join(f"assert {test}" for test in tests)
    return Problem(name, f'def {signature}:\n    """{doc}"""', checks)


PROBLEMS = (
    _problem(
        "is_palindrome(text: str) -> bool",
        "Whether text reads the same backwards, ignoring case and everything that is not a letter or digit.",
        "is_palindrome('A man, a plan, a canal: Panama')",
        "not is_palindrome('hello')",
        "is_palindrome('')",
    ),
    _problem(
        "count_vowels(text: str) -> int",
        "Number of vowels (a, e, i, o, u) in text, in either case.",
        "count_vowels('Education') == 5",
        "count_vowels('rhythm') == 0",
    ),
    _problem(
        "fibonacci(n: int) -> list[int]",
        "The first n Fibonacci numbers, starting with 0 and 1.",
        "fibonacci(0) == []",
        "fibonacci(1) == [0]",
        "fibonacci(7) == [0, 1, 1, 2, 3, 5, 8]",
    ),
    _problem(
        "gcd(a: int, b: int) -> int",
        "Greatest common divisor of two positive integers.",
        "gcd(12, 18) == 6",
        "gcd(7, 13) == 1",
        "gcd(5, 5) == 5",
    ),
    _problem(
        "flatten(items: list) -> list",
        "Flatten a list that may hold lists to any depth, keeping the order.",
        "flatten([1, [2, [3, []], 4]]) == [1, 2, 3, 4]",
        "flatten([]) == []",
    ),
    _problem(
        "word_counts(text: str) -> dict[str, int]",
        "How often each word occurs; words are split at white space and compared in lower case.",
        "word_counts('The cat the dog') == {'the': 2, 'cat': 1, 'dog': 1}",
        "word_counts('') == {}",
    ),
    _problem(
        "is_prime(n: int) -> bool",
        "Whether n is a prime number.",
        "[n for n in range(20) if is_prime(n)] == [2, 3, 5, 7, 11, 13, 17, 19]",
        "not is_prime(-3)",
    ),
    _problem(
        "rotate(items: list, k: int) -> list",
        "The list rotated to the right by k places; k may exceed its length. rotate([1, 2, 3], 1) is [3, 1, 2].",
        "rotate([1, 2, 3], 1) == [3, 1, 2]",
        "rotate([1, 2, 3], 5) == [2, 3, 1]",
        "rotate([], 4) == []",
    ),
    _problem(
        "balanced(text: str) -> bool",
        "Whether the brackets (), [] and {} in text are balanced and properly nested.",
        "balanced('a(b[c]{d})')",
        "not balanced('(]')",
        "not balanced('((')",
        "balanced('')",
    ),
    _problem(
        "merge_sorted(a: list[int], b: list[int]) -> list[int]",
        "Merge two ascending lists into one ascending list.",
        "merge_sorted([1, 4], [2, 3, 9]) == [1, 2, 3, 4, 9]",
        "merge_sorted([], [1]) == [1]",
    ),
    _problem(
        "to_roman(n: int) -> str",
        "Roman numeral of n, 1 to 3999.",
        "to_roman(4) == 'IV'",
        "to_roman(1994) == 'MCMXCIV'",
        "to_roman(3) == 'III'",
    ),
    _problem(
        "second_largest(numbers: list[int]) -> int | None",
        "The second largest distinct number, or None if there is none.",
        "second_largest([3, 1, 3, 2]) == 2",
        "second_largest([5, 5]) is None",
    ),
    _problem(
        "run_lengths(text: str) -> list[tuple[str, int]]",
        "Run-length encoding: each run of one character with its length, in order.",
        "run_lengths('aabccc') == [('a', 2), ('b', 1), ('c', 3)]",
        "run_lengths('') == []",
    ),
    _problem(
        "transpose(matrix: list[list[int]]) -> list[list[int]]",
        "Rows become columns.",
        "transpose([[1, 2, 3], [4, 5, 6]]) == [[1, 4], [2, 5], [3, 6]]",
    ),
    _problem(
        "digit_sum(n: int) -> int",
        "Sum of the decimal digits of n; the sign does not matter.",
        "digit_sum(1234) == 10",
        "digit_sum(-56) == 11",
        "digit_sum(0) == 0",
    ),
    _problem(
        "are_anagrams(a: str, b: str) -> bool",
        "Whether the words have the same letters, ignoring case.",
        "are_anagrams('Listen', 'Silent')",
        "not are_anagrams('aab', 'abb')",
    ),
    _problem(
        "binary_search(items: list[int], target: int) -> int",
        "Index of target in an ascending list, or -1.",
        "binary_search([1, 3, 5, 7], 5) == 2",
        "binary_search([1, 3], 2) == -1",
        "binary_search([], 1) == -1",
    ),
    _problem(
        "caesar(text: str, shift: int) -> str",
        "Shift each letter by shift places in the alphabet, keeping its case; leave other characters alone.",
        "caesar('Hello, xyz!', 3) == 'Khoor, abc!'",
        "caesar('Khoor', -3) == 'Hello'",
    ),
    _problem(
        "common_prefix(words: list[str]) -> str",
        "Longest prefix that all words share.",
        "common_prefix(['flower', 'flow', 'flight']) == 'fl'",
        "common_prefix([]) == ''",
        "common_prefix(['a', 'b']) == ''",
    ),
    _problem(
        "chunks(items: list, size: int) -> list[list]",
        "Split a list into pieces of the given size; the last may be shorter.",
        "chunks([1, 2, 3, 4, 5], 2) == [[1, 2], [3, 4], [5]]",
        "chunks([], 3) == []",
    ),
)
