"""Other people's trainers, made fast by one line; docs/integrations.md shows each.

A file for each package. It imports that package, and nothing else imports it: `import fullstride` needs none of them.
"""
