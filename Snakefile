# Placeholder until the workflow lands
