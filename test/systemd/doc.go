// Package systemd tests the agent as a unit of systemd: installed, started by its
// sockets, and restarted, killed and reloaded under running pods whose cgroups
// systemd makes. It changes the machine it runs on, and so runs in a guest of
// hack/vm.sh alone, whose pid 1 is systemd: make vm-systemd.
package systemd
