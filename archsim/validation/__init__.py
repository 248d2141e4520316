"""How far off the model is: measured figures, calibration, error tables, and the bands made of them."""
