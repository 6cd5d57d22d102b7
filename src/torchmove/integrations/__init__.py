"""Callbacks for the trainers of libraries. `import torchmove` does not import them; each imports its library.

lightning         for `Trainer` of lightning.pytorch and pytorch_lightning
transformers      for `Trainer` of transformers
training_states   what both do: verify, park, log
"""
