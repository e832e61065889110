"""Pictures with captions: drawn scenes, emoji, folders and tar files of one's own."""
