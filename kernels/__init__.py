"""Ground floor: model shapes and the operators of a transformer step, with what each costs."""
