//! The preload library: libc's socket calls, exported over the socket layer.
