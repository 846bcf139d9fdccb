"""Price files of many layouts in, one clean table and a log of every change out."""
