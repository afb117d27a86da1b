package convert

import (
	"strconv"
	"strings"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
)

// Keys identify objects as kubelet does: a sandbox by its name, namespace, uid and attempt; a
// container by its name and attempt in its sandbox. Parts are escaped, so that no two metadata
// share a key.

func keyEscapes() *strings.Replacer {
	return strings.NewReplacer("%", "%25", "_", "%5F", "\x00", "%00")
}

func keyUnescapes() *strings.Replacer {
	return strings.NewReplacer("%25", "%", "%5F", "_", "%00", "\x00")
}

func joinKey(parts ...string) core.Key {
	for i, p := range parts {
		parts[i] = keyEscapes().Replace(p)
	}
	return core.Key(strings.Join(parts, "_"))
}

// SandboxKey is the key of the sandbox with this metadata.
func SandboxKey(m *v1.PodSandboxMetadata) core.Key {
	return joinKey(m.GetName(), m.GetNamespace(), m.GetUid(), strconv.FormatUint(uint64(m.GetAttempt()), 10))
}

// ContainerKey is the key of the container with this metadata in a sandbox.
func ContainerKey(m *v1.ContainerMetadata, sandbox core.ID) core.Key {
	return joinKey(m.GetName(), strconv.FormatUint(uint64(m.GetAttempt()), 10), string(sandbox))
}

// SandboxMetadata returns the metadata of a sandbox's key; nil if it is not valid.
func SandboxMetadata(key core.Key) *v1.PodSandboxMetadata {
	p := strings.Split(string(key), "_")
	if len(p) != 4 {
		return nil
	}
	attempt, err := strconv.ParseUint(p[3], 10, 32)
	if err != nil {
		return nil
	}
	un := keyUnescapes()
	return &v1.PodSandboxMetadata{Name: un.Replace(p[0]), Namespace: un.Replace(p[1]), Uid: un.Replace(p[2]), Attempt: uint32(attempt)}
}

// CheckKey refuses keys that the engine would refuse.
func CheckKey(k core.Key) error {
	if len(k) > core.MaxKey {
		return invalid.Errorf("metadata of %d bytes, at most %d", len(k), core.MaxKey)
	}
	return nil
}
