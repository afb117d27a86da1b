// This file lets fork.go declare functions without a body.
