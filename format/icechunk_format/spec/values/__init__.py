"""Encodings of metadata values and of the configuration: MessagePack, FlexBuffers, YAML."""
