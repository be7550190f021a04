"""Records what TRL's reward functions give, for crates/rewards/tests/trl.rs.

    python trl_rewards.py > ../golden/trl_rewards.json

TRL 1.16.0 with math-verify 0.9.0 and latex2sympy2-extended 1.11.0. Every case is scored by itself.
"""

import json
import logging

from trl.rewards import (
    accuracy_reward,
    get_cosine_scaled_reward,
    get_repetition_penalty_reward,
    get_soft_overlong_punishment,
    reasoning_accuracy_reward,
    think_format_reward,
)

logging.disable(logging.CRITICAL)


def message(text):
    return [{"role": "assistant", "content": text}]


FORMATS = [
    "<think>a</think>b", "<think>\na\n</think>\nb", "<think></think>", "<think>a</think>", "<think>a", "a</think>b",
    " <think>a</think>b", "\n<think>a</think>b", "x\n<think>a</think>b", "<think>a<think>b</think>c",
    "<think>a</think>b<think>", "<think>a</think>b</think>c", "<Think>a</Think>b", "", "<think>a\n</think>\n\nb\n<think>",
    "<think>ü</think>ß",
]

# Solution, completion.
ANSWERS = [
    # Marked answers: whole numbers.
    ("72", r"\boxed{72}"), ("72", r"So \boxed{71}."), ("72", "The answer is 72"), ("72", "The answer is $72$."),
    ("72", "Answer: $72$"), ("72", "The final answer is $72$. I hope it is correct."), ("72", "It is $72$."),
    ("72", "$\\boxed{72}$"), ("72", "$$\\boxed{72}$$"), ("72", "\\[ \\boxed{72} \\]"), ("72", "\\( \\boxed{72} \\)"),
    ("72", r"\boxed{71} no, \boxed{72} is right, I am very sure of that, as it was computed with the greatest care"),
    ("72", r"\boxed{72} no, that was wrong and I have to compute it all again from the start, hence \boxed{71}"),
    ("72", r"\boxed 72"), ("72", r"\boxed{ 72 }"), ("72", r"\fbox{72}"), ("72", r"\boxed{72"), ("72", r"\boxed{}"), ("72", ""),
    ("72", r"\boxed{72.0}"), ("72", r"\boxed{72.}"), ("72", r"\boxed{072}"), ("72", r"\boxed{+72}"), ("-72", r"\boxed{-72}"),
    ("72", r"\boxed{-72}"), ("1000", r"\boxed{1,000}"), ("1,000", r"\boxed{1000}"), ("1000000", r"\boxed{1,000,000}"),
    ("1000", r"\boxed{1 000}"), ("1000", r"\boxed{1{,}000}"), ("1000", r"\boxed{1\,000}"), ("72", r"\boxed{\$72}"),
    ("72", r"\boxed{72\$}"), ("$72", r"\boxed{72}"), ("#### 72", r"\boxed{72}"), ("He has 3 and so 72", r"\boxed{72}"),
    ("He has 72 of 100", r"\boxed{72}"), ("The answer is 72 of 100", r"\boxed{72}"),
    ("72", r"\boxed{72\text{ apples}}"), ("72", r"\boxed{72 \text{ cm}^2}"), ("72", r"\boxed{72 cm}"), ("72", r"\boxed{72\ \mathrm{km}}"),
    ("72 km", r"\boxed{72}"), ("72", r"\boxed{\text{72}}"), ("72", r"\boxed{\mathbf{72}}"), ("72", r"\boxed{72^\circ}"),
    ("0", r"\boxed{0}"), ("0", r"\boxed{-0}"), ("12345678901234567890", r"\boxed{12345678901234567891}"),
    ("12345678901234567890", r"\boxed{12345678901234567890}"),
    # Fractions and decimals.
    (r"\frac{1}{3}", r"My answer is \boxed{\frac{1}{3}}"), (r"\frac{1}{3}", r"My answer is \boxed{\frac{1}{2}}"),
    (r"\frac{1}{3}", r"\boxed{1/3}"), ("1/3", r"\boxed{\frac{1}{3}}"), ("1/3", r"\boxed{\frac13}"), ("1/3", r"\boxed{\dfrac{1}{3}}"),
    ("1/3", r"\boxed{\tfrac 1 3}"), ("1/3", r"\boxed{\frac{2}{6}}"), ("1/3", r"\boxed{0.333333}"), ("1/3", r"\boxed{0.33333}"),
    ("1/3", r"\boxed{0.3333333333}"), ("-1/3", r"\boxed{-\frac{1}{3}}"), ("-1/3", r"\boxed{\frac{-1}{3}}"), ("0.5", r"\boxed{\frac{1}{2}}"),
    ("0.5", r"\boxed{.5}"), ("0.5", r"\boxed{0.50}"), ("0.5", r"\boxed{0,5}"), ("1/2", r"\boxed{0.5}"), ("3.14", r"\boxed{3.140}"),
    ("3.14", r"\boxed{3.141}"), ("2.5", r"\boxed{2\frac{1}{2}}"), ("5/2", r"\boxed{2 \frac{1}{2}}"), ("1.0000001", r"\boxed{1}"),
    ("1e3", r"\boxed{1000}"), ("1000", r"\boxed{10^3}"), ("1024", r"\boxed{2^{10}}"), ("5", r"\boxed{2+3}"), ("6", r"\boxed{2 \cdot 3}"),
    ("6", r"\boxed{2 \times 3}"), ("6", r"\boxed{2*3}"), ("2", r"\boxed{6 \div 3}"), ("1", r"\boxed{(2+3)(1/5)}"), ("24", r"\boxed{4!}"),
    ("2 + 3", r"\boxed{5}"), ("1/2 + 1/3", r"\boxed{5/6}"), ("3^2", r"\boxed{9}"), ("(1+2)*3", r"\boxed{9}"),
    # Percentages.
    ("9%", r"\boxed{9\%}"), ("9%", r"\boxed{9}"), ("9", r"\boxed{9\%}"), ("9%", r"\boxed{0.09}"), ("0.09", r"\boxed{9\%}"),
    ("9%", r"\boxed{9 \text{ percent}}"), ("9 percent", r"\boxed{9\%}"), ("9%", r"\boxed{\frac{9}{100}}"), ("9%", r"\boxed{9%}"),
    ("9.5%", r"\boxed{9.5\%}"), ("9.5%", r"\boxed{9.5}"), ("50%", r"\boxed{\frac{1}{2}}"), ("$9\\%$", r"\boxed{9}"),
    # Roots and constants.
    (r"$\sqrt{2}$", r"\boxed{\sqrt{2}}"), (r"$\sqrt{2}$", r"\boxed{\sqrt2}"), (r"$\sqrt{2}$", r"\boxed{1.414214}"),
    (r"$\sqrt{2}$", r"\boxed{1.41}"), (r"$\sqrt{8}$", r"\boxed{2\sqrt{2}}"), (r"$\sqrt[3]{8}$", r"\boxed{2}"), (r"$\frac{\sqrt{2}}{2}$", r"\boxed{\frac{1}{\sqrt{2}}}"),
    (r"$2\pi$", r"\boxed{2\pi}"), (r"$2\pi$", r"\boxed{6.283185}"), (r"$\pi$", r"\boxed{3.14}"), (r"$e$", r"\boxed{e}"), (r"$\sqrt{16}$", r"\boxed{4}"),
    (r"$2^{1/2}$", r"\boxed{\sqrt{2}}"), (r"$\infty$", r"\boxed{\infty}"), (r"$-\infty$", r"\boxed{\infty}"),
    # Variables and equations.
    ("$x^2+1$", r"\boxed{x^2+1}"), ("$x^2+1$", r"\boxed{1+x^2}"), ("$2x+2$", r"\boxed{2(x+1)}"), ("$2x+2$", r"\boxed{2x+3}"), ("$x$", r"\boxed{y}"),
    ("$(x+1)^2$", r"\boxed{x^2+2x+1}"), ("$x=5$", r"\boxed{5}"), ("5", r"\boxed{x=5}"), ("5", r"\boxed{x = 5}"), ("$x=5$", r"\boxed{x=5}"),
    ("$x=5$", r"\boxed{y=5}"), ("5", r"\boxed{2+3=5}"), ("5", r"\boxed{x = 2+3 = 5}"), ("$y = 2x + 1$", r"\boxed{y = 1 + 2x}"), ("$x^2+1$", "x^2+1"),
    ("$x > 5$", r"\boxed{x > 5}"), ("$x > 5$", r"\boxed{5 < x}"), ("$x > 5$", r"\boxed{x \geq 5}"), (r"$\alpha$", r"\boxed{\alpha}"), ("$xy$", r"\boxed{yx}"),
    (r"$\frac{x}{2}$", r"\boxed{0.5x}"), (r"$\frac{x+1}{2}$", r"\boxed{\frac{x}{2}+\frac12}"), ("$x_1$", r"\boxed{x_1}"), ("$x_1$", r"\boxed{x_2}"),
    # Several values.
    ("$1, 2$", r"\boxed{1, 2}"), ("$1, 2$", r"\boxed{2, 1}"), ("$1, 2$", r"\boxed{1,2,3}"), ("$1, 2$", r"\boxed{1 \text{ and } 2}"), ("$1$ and $2$", r"\boxed{1,2}"),
    ("$(1, 2)$", r"\boxed{(1, 2)}"), ("$(1, 2)$", r"\boxed{(2, 1)}"), ("$(1, 2)$", r"\boxed{(1,\frac{4}{2})}"), ("$[1, 2]$", r"\boxed{[1, 2]}"), ("$[1, 2)$", r"\boxed{[1, 2]}"),
    ("$[1, 2)$", r"\boxed{[1, 2)}"), (r"$\{1, 2\}$", r"\boxed{\{1, 2\}}"), (r"$\{1, 2\}$", r"\boxed{\{2, 1\}}"), (r"$\{1, 2\}$", r"\boxed{1, 2}"), ("$(1, 2)$", r"\boxed{1, 2}"),
    ("$1, 2$", r"\boxed{1} and \boxed{2}"), ("$1, 2$", r"$\boxed{1}$ and $\boxed{2}$"), ("$x=1, x=2$", r"\boxed{1, 2}"), (r"$(-\infty, 3)$", r"\boxed{(-\infty, 3)}"),
    ("$(1,2,3)$", r"\boxed{(1,2,3)}"), ("$(1,2,3)$", r"\boxed{(1,3,2)}"), (r"$\pm 2$", r"\boxed{\pm 2}"), (r"$\pm 2$", r"\boxed{2, -2}"), (r"$\left(1, 2\right)$", r"\boxed{(1, 2)}"),
    # Words.
    (r"$\text{east}$", r"\boxed{\text{east}}"), (r"$\text{east}$", r"\boxed{\text{west}}"), (r"$\text{East}$", r"\boxed{\text{east}}"), (r"$\text{(A)}$", r"\boxed{A}"), ("$A$", r"\boxed{A}"),
    ("$A$", r"\boxed{B}"), (r"$\text{east}$", r"\boxed{east}"), (r"\boxed{\text{Yes}}", r"\boxed{\text{Yes}}"), (r"\boxed{7}", r"\boxed{7}"), (r"It is $7$.", r"\boxed{7}"),
    # As data sets write them.
    ("She has 16 - 3 - 4 = 9 eggs.\n9 * 2 = 18 dollars.\n#### 18", r"She makes $9 \cdot 2 = 18$ dollars. The answer is \boxed{18}."),
    ("#### 70,000", r"\boxed{70000}"), ("#### -3", r"\boxed{-3}"), ("#### 5.50", r"\boxed{\$5.5}"), ("$18", r"\boxed{\$18.00}"),
    (r"The area is $\boxed{\frac{9}{4}\pi}$.", r"\boxed{\frac{9\pi}{4}}"), (r"\boxed{\dfrac{3}{56}}", r"\boxed{\frac{3}{56}}"),
    (r"So $x=\boxed{-2}$ or $x=\boxed{3}$.", r"\boxed{-2, 3}"),
    (r"$\boxed{(3,\frac\pi2)}$", r"\boxed{\left( 3, \frac{\pi}{2} \right)}"), (r"\boxed{p - q}", r"\boxed{-q + p}"),
    (r"\boxed{\text{Evelyn}}", r"\boxed{\text{Evelyn}}"), (r"\boxed{5}", r"\boxed{x=5}"), (r"\boxed{6 - 5i}", r"\boxed{6-5i}"),
    (r"\boxed{\sqrt{51}}", r"\boxed{\sqrt{51}}"), (r"\boxed{11\sqrt{2}}", r"\boxed{\sqrt{242}}"),
    (r"\boxed{(-\infty,-5)\cup(-5,3)}", r"\boxed{(-\infty, -5) \cup (-5, 3)}"), (r"\boxed{x^3+3x-6}", r"\boxed{x^3 + 3x - 6}"),
    (r"\boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}}", r"\boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}}"),
    (r"\boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}}", r"\boxed{\begin{pmatrix} 2 \\ 2 \end{pmatrix}}"),
    (r"\boxed{\begin{pmatrix} 1/2 \\ 2 \end{pmatrix}}", r"\boxed{\begin{pmatrix} 0.5 \\ 2 \end{pmatrix}}"),
    (r"\boxed{0.35}", r"\boxed{35\%}"), (r"\boxed{10,080}", r"\boxed{10080}"), (r"\boxed{2220_5}", r"\boxed{2220_5}"),
    (r"\boxed{90^\circ}", r"\boxed{90}"), (r"\boxed{\$36}", r"\boxed{36}"), (r"\boxed{1.25}", r"\boxed{\frac{5}{4}}"),
    (r"\boxed{17\text{ cm}}", r"\boxed{17}"), (r"\boxed{\text{(C)}}", r"\boxed{C}"), (r"\boxed{4:3}", r"\boxed{\frac{4}{3}}"),
    (r"\boxed{3 \pm 2\sqrt{2}}", r"\boxed{3+2\sqrt{2}, 3-2\sqrt{2}}"),
    (r"\boxed{\frac{2}{3}, \frac{3}{2}}", r"\boxed{\frac{3}{2},\frac{2}{3}}"),
    (r"\boxed{y = -2x + 3}", r"\boxed{2x + y = 3}"), (r"\boxed{1 \le x \le 3}", r"\boxed{1 \leq x \leq 3}"),
    (r"\boxed{[1, 3]}", r"\boxed{1 \le x \le 3}"), (r"\boxed{x \in [1,3]}", r"\boxed{[1,3]}"),
    (r"\boxed{2^{100}}", r"\boxed{1267650600228229401496703205376}"), (r"\boxed{2^{100}}", r"\boxed{1267650600228229401496703205377}"),
    (r"\boxed{\frac{1}{2}+\frac{i}{2}}", r"\boxed{\frac{1+i}{2}}"), (r"\boxed{i}", r"\boxed{-i}"), (r"\boxed{-1}", r"\boxed{i^2}"),
    (r"\boxed{1}", r"\boxed{\sin^2 x + \cos^2 x}"), (r"\boxed{\ln 2}", r"\boxed{\log_e 2}"), (r"\boxed{\log_2 8}", r"\boxed{3}"),
    (r"\boxed{\log 100}", r"\boxed{2}"), (r"\boxed{e^{x+1}}", r"\boxed{e \cdot e^x}"), (r"\boxed{|x|}", r"\boxed{\sqrt{x^2}}"),
    (r"\boxed{\binom{5}{2}}", r"\boxed{10}"), (r"\boxed{5!}", r"\boxed{120}"), (r"\boxed{\lfloor 2.5 \rfloor}", r"\boxed{2}"),
    (r"\boxed{1.5 \times 10^3}", r"\boxed{1500}"), (r"\boxed{\emptyset}", r"\boxed{\emptyset}"),
    (r"\boxed{\text{no solution}}", r"\boxed{\text{No solution}}"), (r"\boxed{\text{west}}", r"\boxed{west}"),
    (r"\boxed{x=1, y=2}", r"\boxed{(1,2)}"), (r"\boxed{x=1, y=2}", r"\boxed{y=2, x=1}"), (r"\boxed{1, 1}", r"\boxed{1}"),
    (r"\boxed{2x=10}", r"\boxed{x=5}"), (r"\boxed{-x > -5}", r"\boxed{x < 5}"), (r"\boxed{x \ne 2}", r"\boxed{x \neq 2}"),
    (r"\boxed{f(x) = 2x}", r"\boxed{2x}"), (r"\boxed{x + y = z}", r"\boxed{z}"), (r"\boxed{0.\overline{3}}", r"\boxed{\frac{1}{3}}"),
    (r"\boxed{\frac{22}{7}}", r"\boxed{3.142857}"), (r"\boxed{100\pi}", r"\boxed{314.159265}"), (r"\boxed{1:2:3}", r"\boxed{1:2:3}"),
    (r"\boxed{10:30}", r"\boxed{10:30}"), (r"\boxed{7 dollars}", r"\boxed{7}"), (r"\boxed{2 3}", r"\boxed{23}"), (r"\boxed{2(3)}", r"\boxed{6}"),
    (r"\boxed{\mathbb{R}}", r"\boxed{\mathbb{R}}"), (r"\boxed{AB}", r"\boxed{BA}"), (r"\boxed{X}", r"\boxed{x}"), (r"\boxed{\{1\}}", r"\boxed{1}"),
    (r"\boxed{[1,2,3]}", r"\boxed{(1,2,3)}"), (r"\boxed{(2,1)}", r"\boxed{(2,1)}"), (r"\boxed{\frac{\sqrt{3}}{3}}", r"\boxed{\frac{1}{\sqrt{3}}}"),
    (r"\boxed{3\frac{1}{5}}", r"\boxed{\frac{16}{5}}"), (r"\boxed{-\frac{a}{b}}", r"\boxed{\frac{-a}{b}}"), (r"\boxed{a_n = 2n}", r"\boxed{2n}"),
    (r"\boxed{12{,}345}", r"\boxed{12345}"), (r"\boxed{\frac{100}{3}\%}", r"\boxed{\frac{1}{3}}"), (r"\frac12", r"\boxed{\frac{1}{2}}"),
    (r"$\frac12$", r"\boxed{\frac{1}{2}}"), (r"$\sqrt3$", r"\boxed{\sqrt{3}}"), (r"$2^10$", r"\boxed{1024}"), (r"$x^(1/2)$", r"\boxed{\sqrt{x}}"),
    (r"$\int_0^1 x\,dx$", r"\boxed{\frac{1}{2}}"), (r"$\sum_{i=1}^{3} i$", r"\boxed{6}"), ("The answer is 3.", r"\boxed{3}"), ("It takes 3 hours.", r"\boxed{3}"),
    ("3 + 4 = 7", r"\boxed{7}"), ("x = 7", r"\boxed{7}"), ("x=7", r"\boxed{7}"), ("answer: 7 (see page 12)", r"\boxed{7}"), ("The final answer is 7 of 12", r"\boxed{7}"),
    ("(7)", r"\boxed{7}"), ("7)", r"\boxed{7}"), ("-7", r"\boxed{-7}"), ("+7", r"\boxed{7}"), ("2*(3+4)", r"\boxed{14}"), ("**7**", r"\boxed{7}"), ("7.", r"\boxed{7}"), ("7,5", r"\boxed{7.5}"),
    ("1.234.567", r"\boxed{1234567}"), ("7 8", r"\boxed{8}"), ("007", r"\boxed{7}"), ("1/0", r"\boxed{1}"), ("10^100", r"\boxed{10^{100}}"), ("2024-01-15", r"\boxed{2024-01-15}"),
    # Solutions that cannot be parsed.
    ("", r"\boxed{72}"), ("east", r"\boxed{east}"), ("x^2+1", r"\boxed{x^2+1}"), ("seventy two", r"\boxed{72}"), ("A", r"\boxed{A}"), ("Paris", "Paris"),
    # Anchored answers without a box.
    ("72", "answer: $71$ or maybe answer: $72$"), ("72", "The answer is then, after much thought, $72$"), ("72", "**Answer:** $72$"), ("1/3", r"The answer is $\frac{1}{3}$."),
    ("1/3", r"The answer is \frac{1}{3}."), ("72", "The answer is \\(72\\)."), ("72", "The answer is\n\\[72\\]"), ("72", "Final answer: $72$"), ("72", "$72$ is the answer"),
    ("72", "The answer has to be computed with great care, since nothing is known of x: $72$"), ("72", r"Answer: $71$, or \boxed{72}"),
    ("72", "<think>\\boxed{71}</think> \\boxed{72}"), ("72", "The answer is $x = 72$."), ("72", "The answer is $72\\%$"), ("72%", "The answer is $72$%"),
]

# Solution, completion with reasoning.
REASONING = [
    (r"\frac{1}{3}", r"<think> Reasoning content </think> The final answer is \boxed{\frac{1}{3}}"),
    (r"\frac{1}{3}", r"<think> Reasoning content </think> The final answer is \boxed{\frac{1}{2}}"),
    (r"\frac{1}{3}", r"<think> Reasoning content with partial answers \boxed{\frac{1}{3}} but no final answer"),
    ("72", r"<think>\boxed{72}</think>"), ("72", r"<think>\boxed{71}</think>\boxed{72}"), ("72", r"a</think>\boxed{72}</think>\boxed{71}"),
    ("east", r"<think>a</think>\boxed{72}"), ("east", "no end"), ("72", r"[/THINK]\boxed{72}"),
]

LENGTHS = [0, 1, 2, 3, 50, 79, 80, 81, 90, 99, 100, 101, 150, 1000]
TOKENS = [
    [], [1], [1, 2], [1, 2, 3], [1, 2, 3, 4], [5, 5, 5, 5, 5], [5] * 100, [1, 2, 1, 2, 1, 2], [1, 2, 3, 1, 2, 3, 1],
    [7, 8, 9, 10, 7, 8, 9, 11], list(range(50)) * 2,
]


def main():
    def by_itself(function, rows):
        return [[*row, function([message(row[1])], [row[0]])[0]] for row in rows]

    repetition = [(3, -1.0), (2, -1.0), (1, -0.5), (4, 0.0)]
    overlong = [(100, 20), (100, 0), (100, 100), (1280, 256)]
    cosine = [(100, {}), (64, {"min_value_wrong": -2.0, "max_value_wrong": -0.25, "min_value_correct": 0.1, "max_value_correct": 3.0})]
    delimiters = ["[/THINK]", "</think>"]
    record = {
        "think_format": [[text, think_format_reward([message(text)])[0]] for text in FORMATS],
        "accuracy": by_itself(accuracy_reward, ANSWERS),
        "reasoning_accuracy": by_itself(reasoning_accuracy_reward, REASONING),
        "reasoning_accuracy_delimiters": {
            "delimiters": delimiters,
            "cases": by_itself(lambda c, s: reasoning_accuracy_reward(c, s, delimiters), REASONING),
        },
        "soft_overlong": [
            {"max_completion_len": most, "soft_punish_cache": cache,
             "cases": [[n, get_soft_overlong_punishment(most, cache)([[1] * n])[0]] for n in LENGTHS]}
            for most, cache in overlong
        ],
        "repetition": [
            {"ngram_size": size, "max_penalty": penalty,
             "cases": [[ids, get_repetition_penalty_reward(size, penalty)([ids])[0]] for ids in TOKENS]}
            for size, penalty in repetition
        ],
        "cosine": [
            {"max_len": length, **values,
             "cases": [
                 [solution, completion, n,
                  get_cosine_scaled_reward(length, **values)([message(completion)], [solution], [[1] * n])[0]]
                 for n in LENGTHS
                 for solution, completion in [("72", r"\boxed{72}"), ("72", r"\boxed{71}"), ("east", r"\boxed{72}")]
             ]}
            for length, values in cosine
        ],
    }
    # One case per line.
    text = json.dumps(record, ensure_ascii=False)
    print(text.replace("], [", "],\n["))


if __name__ == "__main__":
    main()
