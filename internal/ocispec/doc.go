// Package ocispec builds OCI runtime specs: image and request merged, users
// looked up, mounts, capabilities, devices, limits.
//
// Everything in it is a function of its arguments, but for ReadNode and for
// what is looked up inside an os.Root that is handed in. It must not know any
// face, nor the engine. Start reading at New, then Apply*, each in a file of its
// own.
package ocispec
