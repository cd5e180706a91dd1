"""What is measured on a trained model: energies along its recurrences, answers, generated texts."""
