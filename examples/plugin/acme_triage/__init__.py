"""An example plugin of aorta."""
