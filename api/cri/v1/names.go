// Package v1 has the messages and services of Kubernetes' CRI v1, protobuf package runtime.v1, as of cri-api 0.38.
//
// The descriptors are our own, because the module k8s.io/cri-api needs a newer Go. A program must not link both: they
// register the same names. Start at runtime.proto.
package v1

// Types of a RuntimeCondition.
const (
	RuntimeReady = "RuntimeReady"
	NetworkReady = "NetworkReady"
)

// The kubelet recognizes some errors by the first word of their text.
const (
	SignatureValidationFailed = "SignatureValidationFailed"
	SecurityProfileInvalid    = "SecurityProfileInvalid"
	RegistryUnavailable       = "RegistryUnavailable"
)
