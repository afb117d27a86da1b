package alpha

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	v1 "github.com/longshore/longshore/api/cri/v1"
	cri "github.com/longshore/longshore/api/cri1alpha"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/cri/convert"
	"github.com/longshore/longshore/internal/invalid"
)

// An id of this API is made of the object's metadata, so that a client that repeats a call gets the
// same one. A pod's is name=N,uid=U,namespace=S,attempt=A, a container's is its pod's, a bar, and
// name=N,attempt=A.

// reserved are the characters that could make an id look like another one.
const reserved = ",=|\x00"

func checkNames(names map[string]string) error {
	for what, s := range names {
		if strings.ContainsAny(s, reserved) {
			return invalid.Errorf("%s %q: a comma, an equals sign and a bar cannot be in it, because ids are made of it", what, s)
		}
	}
	return nil
}

func checkSandboxNames(m *cri.PodSandboxMetadata) error {
	if m.GetName() == "" {
		return invalid.Errorf("pod sandbox config without metadata and a name")
	}
	return checkNames(map[string]string{"pod name": m.GetName(), "pod uid": m.GetUid(), "pod namespace": m.GetNamespace()})
}

func checkContainerNames(m *cri.ContainerMetadata) error {
	if m.GetName() == "" {
		return invalid.Errorf("container config without metadata and a name")
	}
	return checkNames(map[string]string{"container name": m.GetName()})
}

func sandboxID(m *v1.PodSandboxMetadata) string {
	return fmt.Sprintf("name=%s,uid=%s,namespace=%s,attempt=%d", m.GetName(), m.GetUid(), m.GetNamespace(), m.GetAttempt())
}

func containerID(sandbox string, m *v1.ContainerMetadata) string {
	return fmt.Sprintf("%s|name=%s,attempt=%d", sandbox, m.GetName(), m.GetAttempt())
}

// fields reads "k1=v1,k2=v2" with exactly these keys in this order.
func fields(s string, keys ...string) (values []string, ok bool) {
	parts := strings.Split(s, ",")
	if len(parts) != len(keys) {
		return nil, false
	}
	for i, p := range parts {
		k, v, found := strings.Cut(p, "=")
		if !found || k != keys[i] || strings.ContainsAny(v, reserved) {
			return nil, false
		}
		values = append(values, v)
	}
	return values, true
}

// attempt reads a number as it is written in ids.
func attempt(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && strconv.FormatUint(n, 10) == s
}

func parseSandboxID(id string) (*v1.PodSandboxMetadata, bool) {
	v, ok := fields(id, "name", "uid", "namespace", "attempt")
	if !ok {
		return nil, false
	}
	n, ok := attempt(v[3])
	return &v1.PodSandboxMetadata{Name: v[0], Uid: v[1], Namespace: v[2], Attempt: n}, ok
}

func parseContainerID(id string) (sandbox string, m *v1.ContainerMetadata, ok bool) {
	sandbox, own, ok := strings.Cut(id, "|")
	if !ok {
		return "", nil, false
	}
	v, ok := fields(own, "name", "attempt")
	if !ok {
		return "", nil, false
	}
	n, ok := attempt(v[1])
	return sandbox, &v1.ContainerMetadata{Name: v[0], Attempt: n}, ok
}

// sandbox returns the sandbox of an id. InvalidArgument without one, NotFound.
func (s *Server) sandbox(id string) (*core.Sandbox, error) {
	if id == "" {
		return nil, invalid.Errorf("no pod sandbox id")
	}
	missing := fmt.Errorf("pod sandbox %s: %w", id, errdefs.ErrNotFound)
	m, ok := parseSandboxID(id)
	if !ok {
		return nil, missing
	}
	all, err := s.o.Engine.Stored.Sandboxes()
	if err != nil {
		return nil, err
	}
	key := convert.SandboxKey(m)
	for _, sb := range all {
		if sb.Key == key {
			return sb, nil
		}
	}
	return nil, missing
}

// container is sandbox for containers.
func (s *Server) container(id string) (*core.Container, error) {
	if id == "" {
		return nil, invalid.Errorf("no container id")
	}
	missing := fmt.Errorf("container %s: %w", id, errdefs.ErrNotFound)
	pod, m, ok := parseContainerID(id)
	if !ok {
		return nil, missing
	}
	sb, err := s.sandbox(pod)
	if err != nil {
		if errdefs.IsNotFound(err) || errdefs.IsInvalidArgument(err) {
			err = missing
		}
		return nil, err
	}
	return s.containerOf(sb, m, missing)
}

func (s *Server) containerOf(sb *core.Sandbox, m *v1.ContainerMetadata, missing error) (*core.Container, error) {
	all, err := s.o.Engine.Stored.ContainersOf(sb.ID)
	if err != nil {
		return nil, err
	}
	key := convert.ContainerKey(m, sb.ID)
	for _, c := range all {
		if c.Key == key && c.State != core.ContainerCreating {
			return c, nil
		}
	}
	return nil, missing
}

// idOf returns a sandbox's id for clients.
func idOf(sb *core.Sandbox) string { return sandboxID(convert.SandboxMetadata(sb.Key)) }
