"""Files and where they are: all that depends on the kind of storage, disks or object stores."""
