//! Dispatch of operations to a body: `flex`, kernels on tensors in host memory, or `gpu`, Burn's operations, which any
//! device has.

/// `module::operation(arguments)` of `flex` where kernels compute on all of `tensors`, else of `gpu`; returns from the
/// function that it stands in.
macro_rules! dispatch {
    ($tensors:expr => $module:ident::$operation:ident($($argument:expr),* $(,)?)) => {{
        #[cfg(feature = "flex")]
        if crate::flex::holds($tensors) {
            return crate::flex::$module::$operation($($argument),*);
        }
        crate::gpu::$module::$operation($($argument),*)
    }};
}

pub(crate) use dispatch;
