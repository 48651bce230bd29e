"""What an engine replica knows, as arrays: below the policies that read them and the engine that changes them."""
