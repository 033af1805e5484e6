"""Why did it say that: which words made an answer, and what the model's attention looked at."""
