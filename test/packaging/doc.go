// Package packaging tests the Debian packages that hack/deb.sh makes: their content, and their
// scripts on a system with dpkg and stand-ins for systemd. test/systemd installs them on a real
// one.
package packaging
