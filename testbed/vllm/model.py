"""Makes a tiny random model with a tokenizer and a chat template: `model.py FOLDER`. It answers nonsense, quickly."""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}{% endfor %}<s>assistant:"

folder = sys.argv[1]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
letters = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=["<s>", "</s>"], initial_alphabet=letters)
tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog"], trainer)
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
fast.chat_template = TEMPLATE
fast.save_pretrained(folder)

torch.manual_seed(0)
# The processor's attention kernels refuse small heads: 4 heads of 64.
config = LlamaConfig(
    vocab_size=len(fast),
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=4096,
    bos_token_id=fast.bos_token_id,
    eos_token_id=fast.eos_token_id,
    dtype="float32",
)
LlamaForCausalLM(config).save_pretrained(folder)
