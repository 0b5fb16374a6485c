"""What those who mean harm can do to real processes and to the roles: attacks, and what they are made of."""
