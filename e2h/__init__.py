"""e2h ("easy to hard"): train on easy, generated problems; test on harder ones."""
