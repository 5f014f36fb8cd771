"""`kitchener content`: the images and files of messages."""
