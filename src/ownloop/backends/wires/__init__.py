"""The wires, pure: for each a request encoder and a response decoder, over one reader of event streams."""
