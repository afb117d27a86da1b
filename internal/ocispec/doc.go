// Package ocispec builds OCI runtime specs: the parts every container has, image
// and request merged, users looked up, mounts, capabilities, devices, limits.
//
// Everything in it is a function of its arguments, except ReadNode and HostDevice, which read this
// machine, and lookups inside an os.Root of the caller. It must not know any face, nor the engine.
// Start reading at New, then node.go, which fits a spec to this node.
package ocispec
