// Package escape is the escape suite of programs that hold only their descriptors: each of its
// attempts reaches in an ordinary, privileged container, and is refused with grants. One that was
// not really made fails the suite, as does a suite that finds nothing missing where a defence is.
// The attempts are the program in the directory attempts, which also takes the place of the one that
// runs modules, and for WebAssembly that in testdata/modules.
package escape
