"""A few everyday questions, for measurements and demos without a data set."""

QUESTIONS = (
    "Explain in a few sentences why the sky is blue.",
    "Write a short letter to a friend about a walk in the mountains.",
    "List five ways to save water at home.",
    "What is the difference between a virus and a bacterium?",
    "Write a Python function that returns the n-th Fibonacci number.",
    "A train travels 60 km in 45 minutes. What is its average speed in km/h?",
    "Summarize the story of Little Red Riding Hood.",
    "Describe how bread is made, step by step.",
)
