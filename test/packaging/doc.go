// Package packaging tests the Debian packages that hack/deb.sh makes: what is in
// them, and what their scripts do on a system that has dpkg and stand-ins for
// systemd. test/systemd installs them on a real one.
package packaging
