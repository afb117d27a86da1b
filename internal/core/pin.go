package core

import (
	"context"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Pinner makes namespaces that exist without a process, held by bind mounts.
type Pinner interface {
	// Pin makes the requested namespaces together and returns the path of each.
	Pin(ctx context.Context, req PinRequest) (map[specs.LinuxNamespaceType]string, error)
	// Unpin is idempotent.
	Unpin(ctx context.Context, sandbox ID) error
	Pinned(ctx context.Context) ([]ID, error)
}

// PinRequest asks for namespaces.
type PinRequest struct {
	Sandbox    ID
	Kinds      []specs.LinuxNamespaceType // network, ipc, uts, user
	Hostname   string
	Domainname string
	Sysctls    map[string]string // each is set in the namespace that it belongs to
	UIDs, GIDs []specs.LinuxIDMapping
	// Rest returns the paths and makes nothing: a later request of the sandbox makes the namespaces there.
	Rest bool
	// Join has files of existing namespaces, also of pid namespaces, that are pinned too.
	Join map[specs.LinuxNamespaceType]string
}
