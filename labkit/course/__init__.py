"""Given parts, visible checks and questions of each exercise; parts that several share are beside the phases."""
