"""What is studied beside the suite: its power of detection, the course notes, the pages made of them."""
