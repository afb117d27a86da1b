// Package granted is the core.Runtime of programs that hold only their descriptors. It opens the
// files of a container's document, and the native runtime launches the program with these
// descriptors in an empty root, in namespaces of its own, with an allow-list of system calls.
//
// It decides nothing: package grant does. Start at Runtime.Create.
package granted
