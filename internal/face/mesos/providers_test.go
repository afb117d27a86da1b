package mesos

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestResourceProviderConfigs: a file each, which the agent's restart does not
// lose; the same again is no conflict.
func TestResourceProviderConfigs(t *testing.T) {
	n := newTestNode(t)
	info := func(name, plugin string) string {
		return `{"info":{"type":"org.apache.mesos.rp.local.storage","name":"` + name + `","storage":{"plugin":{"type":"org.example.csi","name":"` + plugin +
			`","containers":[{"services":["NODE_SERVICE"]}]}}}}`
	}
	add := func(i string) string {
		return `{"type":"ADD_RESOURCE_PROVIDER_CONFIG","add_resource_provider_config":` + i + `}`
	}
	update := func(i string) string {
		return `{"type":"UPDATE_RESOURCE_PROVIDER_CONFIG","update_resource_provider_config":` + i + `}`
	}
	remove := `{"type":"REMOVE_RESOURCE_PROVIDER_CONFIG","remove_resource_provider_config":{"type":"org.apache.mesos.rp.local.storage","name":"disks"}}`
	what := "Resource provider with type 'org.apache.mesos.rp.local.storage' and name 'disks' "
	n.is(update(info("disks", "lvm")), 404, what+"does not exist")
	n.is(add(info("disks", "lvm")), 200, "")
	n.shutdown()
	n.serve()
	n.is(add(info("disks", "lvm")), 200, "")
	n.is(add(info("disks", "zfs")), 409, what+"already exists")
	for range 2 {
		n.is(update(info("disks", "zfs")), 200, "")
	}
	n.is(add(info("disks", "zfs")), 200, "")
	for name, call := range map[string]func(string) string{"add": add, "update": update} {
		n.is(call(info("a.b", "lvm")), 400, "Failed to validate resource provider config with type 'org.apache.mesos.rp.local.storage' and name 'a.b': "+
			"Resource provider name 'a.b' does not follow Java package naming convention")
		n.is(call(strings.Replace(info("disks", "lvm"), `"name"`, `"id":{"value":"x"},"name"`, 1)), 400, "Failed to validate agent::Call: Expecting '"+name+"_resource_provider_config.info.id' to be unset")
	}
	n.is(`{"type":"GET_RESOURCE_PROVIDERS"}`, 200, `{"type":"GET_RESOURCE_PROVIDERS","get_resource_providers":{}}`)
	file := filepath.Join(n.work, "resource_providers", "org.apache.mesos.rp.local.storage.disks.json")
	if got, err := os.ReadFile(file); err != nil || !strings.Contains(string(got), `"name":"zfs"`) {
		t.Errorf("%s, %v", got, err)
	}
	if err := os.WriteFile(file, []byte("no JSON"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, text := n.post(add(info("disks", "zfs"))); code != 500 || !strings.Contains(text, file) {
		t.Errorf("beside a file that is none: %d %q", code, text)
	}
	for range 2 {
		n.is(remove, 200, "")
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("after the removal: %v", err)
	}
}
