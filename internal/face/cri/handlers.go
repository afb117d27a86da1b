package cri

import (
	"maps"
	"slices"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
)

// mapsUsers reports whether a runtime can run a pod in a user namespace.
func mapsUsers(r engine.RuntimeInfo) bool {
	return r.Features.UserNamespaces && r.Features.IDMappedMounts
}

// handlers are the RuntimeClass handlers that work: "" is the default runtime,
// then every runtime by its name, then the config's names.
func handlers(cfg Config, runtimes []engine.RuntimeInfo) []*v1.RuntimeHandler {
	byName := map[string]engine.RuntimeInfo{}
	for _, r := range runtimes {
		byName[r.Name] = r
		if r.Default {
			byName[""] = r
		}
	}
	if r, ok := byName[core.GrantHandler]; ok {
		for _, handler := range core.WasmHandlers() {
			byName[handler] = r
		}
	}
	for handler, name := range cfg.Handlers {
		if r, ok := byName[name]; ok {
			byName[handler] = r
		}
	}
	var out []*v1.RuntimeHandler
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		r := byName[name]
		if r.Problem != "" {
			continue
		}
		out = append(out, &v1.RuntimeHandler{Name: name, Features: &v1.RuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: r.Features.RecursiveReadOnly,
			// Files in the image belong to the node's users, so a user
			// namespace needs id-mapped mounts as well.
			UserNamespaces:   mapsUsers(r),
			CgroupNamespaces: r.Features.CgroupNamespaces && !cfg.ofWasm(name) && name != core.GrantHandler,
		}})
	}
	return out
}
