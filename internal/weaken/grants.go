package weaken

// GrantLandlock restricts the paths, sockets and signals of a program that holds only its
// descriptors.
const GrantLandlock Defence = "grant-landlock"

// GrantSeccomp allows such a program only the system calls that it needs.
const GrantSeccomp Defence = "grant-seccomp"

// GrantNamespaces gives such a program namespaces of its own and an empty root.
const GrantNamespaces Defence = "grant-namespaces"

// BoardShortage lets the board keep a handle after a failed send of a descriptor, because its user
// has too many in flight between processes.
const BoardShortage Defence = "board-shortage"
