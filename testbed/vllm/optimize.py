"""Makes a model with half the bits of another: reads the folder $MODEL_PATH, writes the folder $OUTPUT_PATH."""

import os

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

source, target = os.environ["MODEL_PATH"], os.environ["OUTPUT_PATH"]
AutoModelForCausalLM.from_pretrained(source).to(torch.bfloat16).save_pretrained(target)
AutoTokenizer.from_pretrained(source).save_pretrained(target)
