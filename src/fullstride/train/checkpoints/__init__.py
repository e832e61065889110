"""Checkpoints: written aside, synced, sealed, renamed, read back. Start reading at store.py.

    store.py            the checkpoints of a run: which stay, which is the newest that is whole
    directory.py        one of them: its files and its manifest
    tensor_files.py     tensors as safetensors
    flat_state.py       the state of an optimizer as tensors and a document
    saver.py            saving in the background
"""
