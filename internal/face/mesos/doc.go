// Package mesos is the face that speaks the Mesos v1 agent operator API.
package mesos
