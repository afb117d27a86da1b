// Package systemd tests the agent as a unit of systemd: installed, started by its sockets, and
// restarted, killed and reloaded under running pods with systemd's cgroups. It changes its machine,
// and so runs only in a guest of hack/vm.sh with systemd as pid 1: make vm-systemd.
package systemd
