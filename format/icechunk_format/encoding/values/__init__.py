"""Decodes and encodes metadata values and the configuration: MessagePack, FlexBuffers, YAML."""
