"""The packets of one window, prepared: by flags, conversation, feature, signature and part."""
