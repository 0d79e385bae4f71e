"""Inputs that once deserved attention: `frame-*` are streams, `batch-*` whole batches."""
