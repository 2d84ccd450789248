"""Writes tokens.jsonl: texts with the tokens that the model's own tokenizer makes of them.

Usage: pip install tokenizers; tokens.py tokenizer.json > tokens.jsonl
"""

import json
import random
import sys

from tokenizers import Tokenizer

PROSE = """The tests fail: 3 of 12, exit code 101. Run `cargo test --workspace` again; see src/main.rs:42.
ENTIRE_SKIP_AGENT_CHECK=1 git commit -m "fix(auth): don't retry" && echo ok
Traceback (most recent call last): ModuleNotFoundError: No module named 'yaml'
Ça coûte 3,50 €, naïve café, Ångström, ﬁancé, ĲSSELMEER, ǅ, İstanbul, ß, ẞ, Ω, Ώ
東京タワー 한국어 текст العربية हिन्दी ไทย emoji 🙂👩‍👩‍👧 ﷺ ½ ² ™
tab\there\r\nnew line\u2028separator\u00a0no-break\u3000wide\u200bzero\ufeffbom\u0000nul\ufffdreplaced\x1b[31mred\x0c\x0b\x85
[UNK] [CLS] [unused1] ##ing # ## ### a##b x_y__z ~~~ $1.00 50% <a@b.c> “quoted” — dash… ¿qué? ‹›«»
antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis 0123456789abcdef0123456789abcdef"""

tokenizer = Tokenizer.from_file(sys.argv[1])
tokenizer.no_truncation()
tokenizer.no_padding()
rng = random.Random(1)
characters = [chr(c) for block in [(32, 127), (160, 0x250), (0x300, 0x400), (0x2000, 0x2070), (0x4E00, 0x4E40), (0xF900, 0xF940)] for c in range(*block)]
texts = PROSE.split("\n") + ["a" * 100, "a" * 101, "", " "]
texts += ["".join(rng.choices(characters, k=rng.randrange(1, 30))) for _ in range(200)]
texts += ["".join(rng.choices(list("abcdefgh sting-_."), k=40)) for _ in range(40)]
for text in texts:
    # A text may hold a special token; it is text here.
    text = text.replace("[UNK]", "[ UNK ]").replace("[CLS]", "[ CLS ]")
    print(json.dumps([text, tokenizer.encode(text, add_special_tokens=False).tokens], ensure_ascii=False))
