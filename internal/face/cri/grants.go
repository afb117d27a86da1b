package cri

import (
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/longshore/longshore/internal/core"
)

// document returns what a container's program is granted, when it is to hold nothing else. The
// container's own annotation counts, or that of its pod with the container's name. With the runtime
// handler for such programs, a container without a document is granted nothing.
func document(req *v1.CreateContainerRequest, sb *core.Sandbox) (string, bool) {
	if doc, ok := req.GetConfig().GetAnnotations()[core.GrantAnnotation]; ok {
		return doc, true
	}
	if doc, ok := req.GetSandboxConfig().GetAnnotations()[core.GrantAnnotation+"/"+req.GetConfig().GetMetadata().GetName()]; ok {
		return doc, true
	}
	return "", sb.Config.Runtime == core.GrantHandler
}

// granted adds the document to the annotations of a container's spec.
func granted(annotations map[string]string, req *v1.CreateContainerRequest, sb *core.Sandbox) map[string]string {
	if doc, ok := document(req, sb); ok {
		annotations[core.GrantAnnotation] = doc
	}
	return annotations
}
